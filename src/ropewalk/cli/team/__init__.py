"""Share logs in a team: clone, pull, push, and the server-side hook."""
