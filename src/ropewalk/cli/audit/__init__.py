"""Commands for auditors: verify, bundle, witness."""
