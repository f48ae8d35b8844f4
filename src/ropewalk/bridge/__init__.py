"""Where two engines meet, and nowhere else: an event of one becomes a new event of another, with a link to the old."""
