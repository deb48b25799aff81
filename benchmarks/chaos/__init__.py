"""Kill anything, lose nothing: a load of every kind of request while processes die at random."""
