"""`stomp-gateway tap`: a passive proxy in front of any STOMP server, which writes the traffic journal."""
