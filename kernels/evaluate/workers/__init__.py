"""The processes that run code the judge does not trust: how they start, what they do, what they say."""
