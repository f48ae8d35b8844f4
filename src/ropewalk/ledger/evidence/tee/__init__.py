"""Attestation reports of trusted hardware: AWS Nitro, AMD SEV-SNP, Intel SGX and TDX."""
