"""`toolpool tools check`: what is wrong with the declarations of tools."""
