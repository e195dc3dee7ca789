"""Pure torch maths of the objectives: tensors and floats in, losses and metrics out.

No configuration, no distributed calls, no state besides ``references.EwmaReference``. Denominators are parameters,
so that micro-batches and ranks never change a number. Tensor names carry their axes where these are fixed:
B rows, T token positions, V vocabulary, E episodes, N action tokens laid end to end.
"""
