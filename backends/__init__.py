"""Where tensors live and run: one interface (:mod:`.base`), one module per kind of machine."""
