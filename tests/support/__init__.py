"""What several test files use: no test is in here."""
