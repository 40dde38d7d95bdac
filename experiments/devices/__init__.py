"""Models on devices: meshes, memory, compilation for TPUs."""
