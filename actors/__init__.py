"""The room that acts: Ray actors and what they hold."""
