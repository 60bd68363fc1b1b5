"""How the tool describes itself: all of it derived from the verbs' descriptions."""
