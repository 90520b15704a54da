"""Who calls: agents and their tokens, what waits for a person, and the sessions they are in.

In: the owner's changes, and tokens that callers bring. Out: agents with the permissions of now. Above: `calls`,
`core`. Below: `policy`, which says what a permission means, and `store`, which keeps the rows.
"""
