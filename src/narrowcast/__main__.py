from narrowcast.cli.app import app

app()
