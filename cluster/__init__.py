"""The room that decides: the cluster on paper, in pure Python."""
