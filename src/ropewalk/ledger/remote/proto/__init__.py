"""Code generated from `schemas/v1/ledger/ledger.proto` by `docs/generate_proto.py`; never edited by hand."""
