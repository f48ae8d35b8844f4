"""JSON Schemas: the shipped ones, those that policies declare, and the first fault as text."""
