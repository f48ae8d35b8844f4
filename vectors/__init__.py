"""Language-neutral cases; `generate` holds the programs that write them."""
