"""What `narrowcast reproduce | theory | attack` do."""
