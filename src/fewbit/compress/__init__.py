"""The whole first loop: recipe after recipe until the gate accepts one, all evidence kept."""
