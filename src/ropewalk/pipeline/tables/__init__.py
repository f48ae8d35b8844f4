"""Warehouses: tables, manifests, Delta logs, SQL and table verification."""
