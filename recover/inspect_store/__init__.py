"""What can be said of a store without reading all of it. Who checks one imports no more than it asks."""
