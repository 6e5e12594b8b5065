"""Text for measuring and calibrating, and the windows of tokens that it is cut into."""
