"""Tests of service/grpc."""
