"""Which retention interval pays: what it costs, measured on recorded traffic."""
