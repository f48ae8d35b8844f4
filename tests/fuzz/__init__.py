"""Every parser of the product, each with samples and with what must hold of whatever it is given."""
