from narrowcast.cli import app

app()
