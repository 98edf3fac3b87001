// Package nodeloss releases or keeps the claims of nodes that are gone from the API, as their StorageClass
// defines. The decision is a pure function (judge.go).
package nodeloss
