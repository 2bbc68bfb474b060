package rest

import "time"

func validTime(s string) bool {
	_, err := time.Parse(time.RFC3339, s)
	return err == nil
}
