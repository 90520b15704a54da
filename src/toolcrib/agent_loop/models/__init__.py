"""The model of a run, asked over its provider's HTTP interface.

`endpoint` says where it is and with which key, and `definitions` what is on the wire for each tool. All else needs
`toolcrib[agent]`, and is imported when a run begins: `opening` opens a model, `http` is the way there, `answers` says
which answers are whole, `retrying` what is asked again, and each provider has a module.
"""
