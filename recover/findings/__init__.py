"""What is said of damage: findings, their codes, and refusals."""
