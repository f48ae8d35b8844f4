"""The HTTP API: routes, problems, the OpenAPI document."""
