"""What people, models and hosts do to calls, in any order and by every road."""
