"""What is shown to browsers. Pages are static, and read the same streams as every other client."""
