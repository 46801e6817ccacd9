"""`toolpool tools check`: finds faults in the declarations of tools."""
