// Package iolimit keeps the I/O limits in pods' control groups as the annotations of their volumes
// say. What to write is a pure function of the desired and the observed limits (plan.go).
package iolimit
