"""What tasks read, and how to get it: `narrowcast data`."""
