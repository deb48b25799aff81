"""Bad neighbours: what badly behaved clients cost the others, and when what they held is free."""
