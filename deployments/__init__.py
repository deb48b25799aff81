"""The room that talks: HTTP, text, keys, and the Serve application as a whole."""
