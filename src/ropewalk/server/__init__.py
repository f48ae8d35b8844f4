"""`ropewalk serve`: one process that serves a repository to a team over HTTP, WebSockets and Server-Sent Events."""
