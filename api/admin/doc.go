// Package admin holds the records of the operators' API, as package v2 holds those of the users'.
package admin
