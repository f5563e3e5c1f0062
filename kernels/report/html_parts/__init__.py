"""The pieces of the HTML report: escaped markup, the style sheet, sources, and the drawings."""
