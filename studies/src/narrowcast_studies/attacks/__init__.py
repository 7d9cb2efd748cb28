"""What an upload reveals of the data behind it: gradient reconstruction against what is really sent."""
