package volume
