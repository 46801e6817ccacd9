"""What the model test of the ledger is made of."""
