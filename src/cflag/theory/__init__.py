"""The laboratory for the theory: problems with known constants, the paper's statements, and the runs that test them."""
