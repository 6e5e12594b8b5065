"""Records drawn for people: on a terminal, and as one HTML file that opens offline.

Nothing here computes a result, and only records are imported, so that the JSON of an old run can be
drawn again.
"""
