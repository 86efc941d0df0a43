"""Every claim, table and figure of the paper beside what the committed results say of it.

``cbsa reproduce report`` writes the page; :mod:`cbsa.reproduction.claims` has the claims, one subject a file.
"""
