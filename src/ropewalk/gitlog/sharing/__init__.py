"""Share logs through git remotes: clone, pull and push, and the server-side hook."""
