"""Other engines: environments, servers, and models that they read."""
