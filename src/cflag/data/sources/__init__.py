"""Sources: the data sets, each with where its files lie, how they are read and where they can be downloaded."""
