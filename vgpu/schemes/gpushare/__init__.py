"""Aliyun's gpushare."""
